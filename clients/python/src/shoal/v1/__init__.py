"""What protoc generates from `shoal/v1/object_store.proto`: messages and raw stubs, checked in so that nobody needs protoc.

Most programs use :class:`shoal.Client` instead. `scripts/generate.py` writes the files here.
"""
