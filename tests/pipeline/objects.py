"""A real S3 interface in a process of its own, and what the usual chain of credentials finds."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tests.pipeline.cluster import free_port, reached
from tests.servers import wait_until

BUCKET = "bucket"
SECRET = "Pl4nted-s3cret"


@contextmanager
def object_store() -> Iterator[str]:
    """Its endpoint, which is in the environment while the body runs; it has one bucket."""
    endpoint = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: reached(port), "the object store")
        with mock.patch.dict(os.environ, surroundings(endpoint)):
            from pyarrow import fs  # noqa: PLC0415

            files = fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True)  # type: ignore[attr-defined]
            files.create_dir(BUCKET)
            yield endpoint
    finally:
        process.kill()
        process.wait()


def surroundings(endpoint: str) -> dict[str, str]:
    """As an operator would export them."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
