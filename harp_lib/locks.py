"""Locks that processes wait for, also on file systems that have none, as some NFS."""

import errno
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, SoftFileLock

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a file system without locks answers."""


def take(file: Path, timeout: float = -1) -> AcquireReturnProxy:
    """Wait for the lock of a file, and hold it until the context of what is returned ends.

    ``timeout`` is in seconds, or -1 to wait however long it takes. If another process has held the
    lock all the time, a ``filelock.Timeout`` is raised. Where the file system has no locks, another
    file, ``….soft``, is the lock as long as it exists. One that a killed process left is replaced
    on the same machine; on another it has to be deleted.
    """
    try:
        return FileLock(file, fallback_to_soft=False).acquire(timeout)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    file.unlink(missing_ok=True)
    return SoftFileLock(file.with_name(f"{file.name}.soft")).acquire(timeout)
