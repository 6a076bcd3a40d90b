"""Tests of the client: against a server in this process that does as told, and against a real `shoal serve`."""
