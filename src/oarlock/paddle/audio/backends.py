"""`paddle.audio.backends`: what reads and writes files. There is one, the standard library."""

__all__ = ["get_current_backend", "list_available_backends", "set_backend"]


def list_available_backends() -> list[str]:
    """The names of what can be chosen."""
    return ["wave_backend"]


def get_current_backend() -> str:
    """The name of what is used."""
    return "wave_backend"


def set_backend(backend_name: str) -> None:
    """Choose by name.

    Raises:
        NotImplementedError: another name than `wave_backend`.
    """
    if backend_name not in list_available_backends():
        raise NotImplementedError(f"the backend {backend_name!r} is not there; known is 'wave_backend'")
