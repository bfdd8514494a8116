"""The ORT-compatible surface. No engine logic: that is in session.py and below."""
