"""The keyed-effect contract, checked from outside: by HTTP alone, against any implementation of docs/effects-api.md."""
