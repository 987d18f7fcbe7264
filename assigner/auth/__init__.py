"""Decides who calls and what that caller may do: principals, their tokens and certificates, and their rights.

- `identity`: a principal, and the patterns that name its groups and its members.
- `actions`: every call of every service, with the roles that may make it.
- `rules`: one pure function decides whether a principal may do an action, and names the claim that is missing.
- `tokens`: verifies signed tokens; `issuing` signs them.
- `keys`: the public keys that tokens are verified with, and the key files of `issuing`.
- `certificates`: principals for the certificates that TLS clients show.
- `authenticator`: who makes a call: what the service asks, for the token and the certificate of each call.
- `failed_verifications`: limits the signatures that an address may have verified in vain.
- `reload`: keeps the content of files up to date, and the last good content when they break.

`identity`, `actions` and `rules` import no library, so every layer may use them. PyJWT and cryptography are imported in
this package only, and by nobody who does not verify or issue tokens.

Not promised: that a principal is still welcome. A token counts until it ends, unless its key is removed before.
"""
