# One image for every process: the command says which one it is (docker-compose.yml has them all).
FROM python:3.11-slim

ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/counterfoil

# What changes seldom comes first, so that a change of the code installs no package again.
COPY constraints-image.txt ./
RUN pip install --require-hashes -r constraints-image.txt

COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY services services
COPY activities activities
COPY workflows workflows
RUN pip install --no-deps --no-build-isolation . && rm -rf build ./*.egg-info

# Nothing but its own volume may be written to: the Temporal dev server's file, and SQLite where somebody wants that.
RUN useradd --system --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin counterfoil \
    && mkdir /data && chown counterfoil /data
WORKDIR /data
USER counterfoil

# The inventory answers HTTP and has its HEALTHCHECK where it runs (docker-compose.yml); a worker listens to nobody.
ENTRYPOINT ["counterfoil"]
CMD ["--help"]
