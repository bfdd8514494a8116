"""The handler of set_default_logger_callback: apart, since to import logging takes 3 ms."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any, Callable


class CallbackHandler(logging.Handler):
    """Hands records to a callable, as onnxruntime does."""

    def __init__(self, callback: Callable[[int, str, str, str, str], Any]):
        super().__init__()
        self.callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        """Numbers 0 verbose .. 4 fatal, the logger's name, no id, where in the code, the text."""
        severity = min(max(record.levelno // 10 - 1, 0), 4)
        place = f"{record.filename}:{record.lineno} {record.funcName}"
        try:
            self.callback(severity, record.name, "", place, record.getMessage())
        except Exception as error:
            unraisable = SimpleNamespace(
                exc_type=type(error),
                exc_value=error,
                exc_traceback=error.__traceback__,
                err_msg="Exception ignored in the logger's callback",
                object=self.callback,
            )
            sys.unraisablehook(unraisable)  # type: ignore[arg-type]
