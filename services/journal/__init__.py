"""The journal: what authorises a send, and the record of what was learned."""
