"""Where untrusted programs run. `base` is the contract; each backend is one module or folder."""
