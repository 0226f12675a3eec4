"""A mount that the kernel takes for a network file system: `python -m tests.stores.objects.network_mount HERE THERE`.

It shows the directory HERE at THERE, as the kind `fuse.sshfs`. Like a real one, it knows nothing of what other machines
do: a file that is written into HERE is found at THERE, but inotify does not report it. It answers the kernel's FUSE
requests itself (version 7.31 of the protocol, linux/fuse.h) for as long as it runs, and needs the right to mount.
"""

import ctypes
import errno
import os
import select
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KIND = "fuse.sshfs"
_PATIENCE_S = 30
_MAX_WRITE = 1 << 17
_NOSUID_NODEV = 2 | 4

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q3I7I")
_SETATTR = struct.Struct("<2I6Q8I")
_INIT_OUT = struct.Struct("<4I2H2I2HI7I")
_READ = struct.Struct("<QQIIQII")
_STATFS = struct.Struct("<5Q4I6I")
_DIRENT = struct.Struct("<QQII")

# Bits of `valid` in a request to change attributes.
_MODE, _SIZE, _ATIME, _MTIME, _ATIME_NOW, _MTIME_NOW = 1, 8, 16, 32, 128, 256
_DIRECT_IO = 1


class Passthrough:
    """The answers to the kernel's requests, from the directory that is shown.

    A node is an open descriptor of its file, so that it survives renames. Its number is that of the inode, and nothing
    is forgotten: a mount for a test does not live long.
    """

    def __init__(self, shown: Path) -> None:
        self._nodes = {1: os.open(shown, os.O_PATH | os.O_DIRECTORY)}
        self._listings: dict[int, list[os.DirEntry[str]]] = {}
        self._files = 0
        self.calls: dict[int, Callable[[int, bytes], bytes]] = {
            1: self.lookup,
            3: self.getattr,
            4: self.setattr,
            9: self.mkdir,
            10: self.unlink,
            11: self.rmdir,
            12: self.rename,
            13: self.link,
            14: self.open,
            15: self.read,
            16: self.write,
            17: self.statfs,
            18: self.release,
            20: self.fsync,
            25: self.nothing,
            26: self.init,
            27: self.opendir,
            28: self.readdir,
            29: self.releasedir,
            30: self.fsyncdir,
            35: self.create,
            45: self.rename2,
        }

    def init(self, node: int, body: bytes) -> bytes:
        return _INIT_OUT.pack(7, 31, 1 << 17, 0, 12, 10, _MAX_WRITE, 1, 0, 0, 0, *[0] * 7)

    def nothing(self, node: int, body: bytes) -> bytes:
        return b""

    # --- Names -----------------------------------------------------------------------------------------------

    def lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(node, _name(body))

    def mkdir(self, node: int, body: bytes) -> bytes:
        mode, umask = struct.unpack_from("<II", body)
        os.mkdir(_name(body[8:]), mode & ~umask, dir_fd=self._nodes[node])
        return self._entry(node, _name(body[8:]))

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("<4I", body)
        name = _name(body[16:])
        file = os.open(name, flags | os.O_CREAT, mode & ~umask, dir_fd=self._nodes[node])
        return self._entry(node, name) + struct.pack("<QII", file, _DIRECT_IO, 0)

    def unlink(self, node: int, body: bytes) -> bytes:
        os.unlink(_name(body), dir_fd=self._nodes[node])
        return b""

    def rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(_name(body), dir_fd=self._nodes[node])
        return b""

    def rename(self, node: int, body: bytes) -> bytes:
        return self._rename(node, struct.unpack_from("<Q", body)[0], body[8:])

    def rename2(self, node: int, body: bytes) -> bytes:
        target, flags, _ = struct.unpack_from("<QII", body)
        if flags:
            raise OSError(errno.EINVAL, "a rename with flags")
        return self._rename(node, target, body[16:])

    def _rename(self, node: int, target: int, names: bytes) -> bytes:
        old, new = (os.fsdecode(each) for each in names.split(b"\0")[:2])
        os.rename(old, new, src_dir_fd=self._nodes[node], dst_dir_fd=self._nodes[target])
        return b""

    def link(self, node: int, body: bytes) -> bytes:
        source = f"/proc/self/fd/{self._nodes[struct.unpack_from('<Q', body)[0]]}"
        os.link(source, _name(body[8:]), dst_dir_fd=self._nodes[node], follow_symlinks=True)
        return self._entry(node, _name(body[8:]))

    def _entry(self, parent: int, name: str) -> bytes:
        file = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._nodes[parent])
        node = os.fstat(file).st_ino
        if self._nodes.setdefault(node, file) != file:
            os.close(file)
        # Valid for no time: the kernel asks each time, as other machines may have changed it.
        return struct.pack("<4Q2I", node, 0, 0, 0, 0, 0) + self._attributes(node)

    # --- Attributes ------------------------------------------------------------------------------------------

    def getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(node)

    def setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, *_ = _SETATTR.unpack_from(body)
        path = f"/proc/self/fd/{self._nodes[node]}"
        if valid & _MODE:
            os.chmod(path, mode & 0o7777)
        if valid & _SIZE:
            os.truncate(path, size)
        if valid & (_ATIME | _MTIME):
            was = os.stat(path)
            if valid & (_ATIME_NOW | _MTIME_NOW):
                os.utime(path)
            else:
                os.utime(
                    path,
                    ns=(
                        atime * 10**9 + atime_ns if valid & _ATIME else was.st_atime_ns,
                        mtime * 10**9 + mtime_ns if valid & _MTIME else was.st_mtime_ns,
                    ),
                )
        return self.getattr(node, b"")

    def _attributes(self, node: int) -> bytes:
        found = os.fstat(self._nodes[node])
        times = [divmod(each, 10**9) for each in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
        return _ATTR.pack(
            *(node, found.st_size, found.st_blocks, *(seconds for seconds, _ in times)),
            *(rest for _, rest in times),
            *(found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0),
        )

    def statfs(self, node: int, body: bytes) -> bytes:
        found = os.statvfs(f"/proc/self/fd/{self._nodes[1]}")
        return _STATFS.pack(
            *(found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree),
            *(found.f_bsize, found.f_namemax, found.f_frsize, 0, *[0] * 6),
        )

    # --- Files -----------------------------------------------------------------------------------------------

    def open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return struct.pack("<QII", os.open(f"/proc/self/fd/{self._nodes[node]}", flags), _DIRECT_IO, 0)

    def read(self, node: int, body: bytes) -> bytes:
        file, offset, size, *_ = _READ.unpack_from(body)
        return os.pread(file, size, offset)

    def write(self, node: int, body: bytes) -> bytes:
        file, offset, size, *_ = _READ.unpack_from(body)
        return struct.pack("<II", os.pwrite(file, body[_READ.size : _READ.size + size], offset), 0)

    def fsync(self, node: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def release(self, node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    # --- Directories -----------------------------------------------------------------------------------------

    def opendir(self, node: int, body: bytes) -> bytes:
        self._files += 1
        with os.scandir(f"/proc/self/fd/{self._nodes[node]}") as entries:
            self._listings[self._files] = list(entries)
        return struct.pack("<QII", self._files, 0, 0)

    def readdir(self, node: int, body: bytes) -> bytes:
        listing, offset, size, *_ = _READ.unpack_from(body)
        found = b""
        for at, entry in enumerate(self._listings[listing][offset:], offset + 1):
            name = os.fsencode(entry.name)
            kind = 4 if entry.is_dir(follow_symlinks=False) else 8
            row = _DIRENT.pack(entry.inode(), at, len(name), kind) + name
            row += bytes(-len(row) % 8)
            if len(found) + len(row) > size:
                break
            found += row
        return found

    def releasedir(self, node: int, body: bytes) -> bytes:
        del self._listings[struct.unpack_from("<Q", body)[0]]
        return b""

    def fsyncdir(self, node: int, body: bytes) -> bytes:
        directory = os.open(f"/proc/self/fd/{self._nodes[node]}", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return b""


def _name(body: bytes) -> str:
    return os.fsdecode(body.partition(b"\0")[0])


def serve(device: int, shown: Path) -> None:
    """Answer the kernel's requests until the mount ends."""
    files = Passthrough(shown)
    while True:
        try:
            request = os.read(device, _MAX_WRITE + 4096)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno == errno.ENOENT:  # the caller was interrupted before its request was read
                continue
            raise
        _, code, unique, node, *_ = _IN.unpack_from(request)
        if code in (2, 36, 42):  # forget, interrupt, batch_forget: without an answer
            continue
        call = files.calls.get(code)
        try:
            if call is None:
                raise OSError(errno.ENOSYS, "not supported")
            answer, failed = call(node, request[_IN.size :]), 0
        except OSError as error:
            answer, failed = b"", -(error.errno or errno.EIO)
        with suppress(FileNotFoundError):  # the caller has been interrupted
            os.write(device, _OUT.pack(_OUT.size + len(answer), failed, unique) + answer)


def main(shown: Path, place: Path) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"holdfast-test", os.fsencode(place), KIND.encode(), _NOSUID_NODEV, options.encode()):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot mount {KIND}: {os.strerror(code)}", str(place))
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    serve(device, shown)


@contextmanager
def network_mount(shown: Path, place: Path) -> Iterator[Path]:
    """Show a directory at another place for the duration of this context, as a network file system would."""
    place.mkdir()
    command = [sys.executable, "-m", "tests.stores.objects.network_mount", str(shown), str(place)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            readable, _, _ = select.select([server.stdout], [], [], _PATIENCE_S)
            assert readable, "the mount did not come up"
            assert server.stdout.readline() == b"mounted\n", "without the right to mount this proves nothing"
            yield place
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=False, timeout=_PATIENCE_S)
            try:
                server.wait(_PATIENCE_S)
            finally:
                server.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
