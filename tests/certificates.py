"""A private authority for TLS in tests: what it has signed, it has signed with the openssl program, on the spot."""

import ssl
import subprocess
from functools import cache
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Authority:
    """One authority, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.ca_file = folder / "ca.pem"
        self._made("ca", "-subj", f"/CN=authority {folder.name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self.server = cache(self.new_server)

    def new_server(self, name: str) -> ssl.SSLContext:
        """What a server needs to be that host, to be changed at will: `IP:127.0.0.1` or `DNS:inventory.example`."""
        stem = name.replace(":", "-")
        self._made(
            stem, "-subj", "/CN=inventory", "-CA", str(self.ca_file), "-CAkey", str(self._folder / "ca.key"),
            "-addext", f"subjectAltName={name}", "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        return context

    def _made(self, stem: str, *options: str) -> None:
        files = ("-keyout", str(self._folder / f"{stem}.key"), "-out", str(self._folder / f"{stem}.pem"))
        command = ["openssl", "req", "-x509", *_KEY, *files, *options]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
