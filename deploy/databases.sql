-- Two databases, and for each an owner that migrates it and a role that works in it. Run by psql, as often as you like:
--
--     psql --no-psqlrc -v ON_ERROR_STOP=1 -f databases.sql
--
-- The passwords come by environment. What the working roles may do is granted by `counterfoil migrate ... --grant-to`.

\getenv journal_owner_password JOURNAL_OWNER_PASSWORD
\getenv worker_password WORKER_PASSWORD
\getenv inventory_owner_password INVENTORY_OWNER_PASSWORD
\getenv inventory_password INVENTORY_PASSWORD

SELECT format('CREATE ROLE %I LOGIN', role)
FROM unnest(ARRAY[
    'counterfoil_journal_owner', 'counterfoil_worker', 'counterfoil_inventory_owner', 'counterfoil_inventory'
]) AS role
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role)
\gexec

-- Every time: a changed password is changed by running this again.
ALTER ROLE counterfoil_journal_owner PASSWORD :'journal_owner_password';
ALTER ROLE counterfoil_worker PASSWORD :'worker_password';
ALTER ROLE counterfoil_inventory_owner PASSWORD :'inventory_owner_password';
ALTER ROLE counterfoil_inventory PASSWORD :'inventory_password';

SELECT format('CREATE DATABASE %I OWNER %I', name, name || '_owner')
FROM unnest(ARRAY['counterfoil_journal', 'counterfoil_inventory']) AS name
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = name)
\gexec

-- By default everybody may connect to every database.
REVOKE ALL ON DATABASE counterfoil_journal, counterfoil_inventory FROM PUBLIC;
