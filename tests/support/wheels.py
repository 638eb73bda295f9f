"""Handwritten wheels, and a package index that serves them."""

import base64
import functools
import hashlib
import http.server
import threading
import zipfile
from pathlib import Path


def make_wheel(
    folder,
    name,
    version="1.0",
    files=None,
    *,
    tag="py3-none-any",
    requires=(),
    entry_points="",
):
    """Write a wheel; return its path.

    Args:
        folder: Folder for the wheel.
        name: Name of the distribution.
        files: Name to content; by default a module with its ``VERSION``.
        tag: Compatibility tag; only a wheel with ``-none-any`` is pure.
        requires: Requirements.
        entry_points: Content of entry_points.txt.
    """
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    pure = str(tag.endswith("-none-any")).lower()
    every = {
        **({f"{module}.py": f"VERSION = {version!r}\n"} if files is None else files),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: {pure}\n"
        f"Tag: {tag}\n",
    }
    if entry_points:
        every[f"{info}/entry_points.txt"] = entry_points
    record = ""
    for path, content in every.items():
        data = content.encode() if isinstance(content, str) else content
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(data)}\n"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in {**every, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, content)
    return wheel


class Index:
    """A package index with a folder per project, see https://peps.python.org/pep-0503/.

    Attributes:
        folder: Root folder.
        asked: Paths of the requests.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir()
        self.asked = asked = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                asked.append(self.path)

            def do_GET(self):
                folder = Path(self.translate_path(self.path))
                if not folder.is_dir():
                    super().do_GET()
                    return
                names = sorted(path.name for path in folder.iterdir())
                hashes = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names}
                links = "".join(f'<a href="{n}#sha256={hashes[n]}">{n}</a>' for n in names)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Cache-Control", "no-cache")
                self.end_headers()
                self.wfile.write(f"<!DOCTYPE html><html><body>{links}</body></html>".encode())

        handler = functools.partial(Handler, directory=str(self.folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self):
        """Environment variables that make uv use this index."""
        return {"UV_DEFAULT_INDEX": self.url, "UV_HTTP_RETRIES": "0", "UV_NO_CONFIG": "1"}

    def add(self, name, *args, **more):
        """Add a wheel, see `make_wheel`."""
        return make_wheel(self.folder / name, name, *args, **more)

    def close(self):
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
