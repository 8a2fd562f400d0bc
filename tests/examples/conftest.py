from __future__ import annotations

from tests.service.conftest import own_server

__all__ = ["own_server"]
