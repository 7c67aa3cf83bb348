"""Sessions and calls. Knows nothing of HTTP, of clusters, or of any protocol."""
