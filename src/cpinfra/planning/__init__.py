"""From a request as written to runs that make sense on this machine; starts and writes nothing."""
