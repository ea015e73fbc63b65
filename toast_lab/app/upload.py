"""A place to drop a file on.

The browser's half is ``upload.js``; the content arrives as bytes and is not interpreted here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import param
from panel.custom import JSComponent

from toast_lab.app import assets
from toast_lab.app.model_loading import MAX_UPLOAD_BYTES

PIECE_BYTES = 512 * 1024
MAX_NAME = 120


class Upload(JSComponent):
    """A drop zone for one file that hands on its content.

    ``on_file(name, content)`` gets a whole file, ``on_refused(name, size)`` one that is empty or
    too large.
    """

    limit = param.Integer(default=MAX_UPLOAD_BYTES)
    piece = param.Integer(default=PIECE_BYTES)
    words = param.String(default="")
    taken = param.List(default=[], doc="[id, bytes that have arrived]; -1: give up")

    _esm = assets.script("upload")
    _stylesheets = [assets.sheet("upload")]  # noqa: RUF012

    def __init__(
        self,
        on_file: Callable[[str, bytes], None],
        on_refused: Callable[[str, int], None],
        **params: Any,
    ) -> None:
        super().__init__(sizing_mode="stretch_width", margin=(3, 0), **params)
        self._on_file, self._on_refused = on_file, on_refused
        self._id: Any = None
        self._parts = bytearray()

    def _handle_msg(self, data: Any) -> None:
        """Take a piece of a file, from a browser that may send anything."""
        if not isinstance(data, dict):
            return
        file_id, size, offset, encoded = (data.get(key) for key in ("id", "size", "at", "data"))
        name = PurePath(str(data.get("name", ""))[:MAX_NAME]).name or "file"
        if not isinstance(file_id, int) or not isinstance(size, int) or not isinstance(offset, int):
            return
        if not isinstance(encoded, str) or len(encoded) > 2 * self.piece:
            return
        if size <= 0 or size > self.limit:
            self._parts, self._id = bytearray(), None
            if size >= 0:
                self._on_refused(name, size)
            return
        if offset == 0:
            self._parts, self._id = bytearray(), file_id
        try:
            piece = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            piece = b""
        if (
            file_id != self._id
            or offset != len(self._parts)
            or not piece
            or offset + len(piece) > size
        ):
            self._parts, self._id = bytearray(), None
            self.taken = [file_id, -1]
            return
        self._parts += piece
        is_whole = len(self._parts) == size
        self.taken = [file_id, len(self._parts)]
        if is_whole:
            content, self._parts, self._id = bytes(self._parts), bytearray(), None
            self._on_file(name, content)
