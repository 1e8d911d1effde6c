"""Client of tessera-server. See tessera.v1."""
