"""Machines for the playbooks: this computer's files below a writable layer, with a systemd, a network and an sshd.

Each is a set of namespaces whose first process is systemd itself, so that units, journal, users and ports are those of
a machine of its own. What is written stays in the layer. They share this computer's kernel and clock; nothing in them
may set the clock. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from waiting import wait_until

# Where a machine has this interpreter and its packages: not in a home folder, which services do not see.
PYTHON, PACKAGES = "/opt/python", "/opt/python-packages"
TOOLS = ("unshare", "nsenter", "ip", "sshd", "sudo", "chronyd", "mosquitto", "setpriv", "systemctl")
SYSTEMD = Path("/lib/systemd/systemd")
BRIDGE, PREFIX = "fedpfl-lan", "fpl"
# Folders of a machine in which it sees nothing of this computer's.
OWN = ("root", "home", "opt", "srv")
# Of the machines' root user, who applies the playbooks.
HOME = Path("~root").expanduser()

_BOOT = r"""
set -eu
root=$1 name=$2 checkout=$3
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/merged"
m=$root/merged
for what in proc sysfs; do mount -t $what $what "$m/${what%fs}"; done
mount -t cgroup2 cgroup2 "$m/sys/fs/cgroup"
for path in run tmp dev var/log var/tmp; do mount -t tmpfs tmpfs "$m/$path"; done
chmod 1777 "$m/tmp" "$m/var/tmp"
for device in null zero full random urandom tty; do
    touch "$m/dev/$device"
    mount --bind "/dev/$device" "$m/dev/$device"
done
mkdir -p "$m/dev/pts" "$m/dev/shm"
mount -t devpts devpts -o newinstance,ptmxmode=0666 "$m/dev/pts"
ln -s pts/ptmx "$m/dev/ptmx"
ln -s /proc/self/fd "$m/dev/fd"

# What is this computer's own, and none of the machine's.
for path in $7; do
    mkdir "$root/$path"
    mount --bind "$root/$path" "$m/$path"
done
rm -rf "$m/etc/systemd/system" "$m/etc/machine-id" "$m/var/lib/fedpfl"
mkdir -p "$m/etc/systemd/system/multi-user.target.wants" "$m/opt/python" "$m/opt/python-packages" "$m/srv/checkout"
od -An -N16 -tx1 /dev/urandom | tr -d ' \n' > "$m/etc/machine-id"
echo "$name" > "$m/etc/hostname"
hostname "$name"
mount --bind "$4" "$m/opt/python"
mount --bind "$5" "$m/opt/python-packages"
# Its library may be sought in a home folder.
echo /opt/python/lib > "$m/etc/ld.so.conf.d/0-test.conf"
chroot "$m" ldconfig
if [ -n "$checkout" ]; then mount --bind "$checkout" "$m/srv/checkout"; fi
chroot "$m" useradd --create-home --shell /bin/bash nano
echo 'nano ALL=(ALL) NOPASSWD: ALL' > "$m/etc/sudoers.d/nano"
# It serves time all the same, without setting the clock.
echo 'DAEMON_OPTS="-x -F 1"' > "$m/etc/default/chrony"
mkdir "$m/etc/systemd/system/chrony.service.d"
printf '[Unit]\nConditionCapability=\n' > "$m/etc/systemd/system/chrony.service.d/test.conf"
for unit in $6; do
    ln -s "/lib/systemd/system/$unit.service" "$m/etc/systemd/system/multi-user.target.wants/$unit.service"
done
ip link set lo up
cd "$m"
mkdir old
pivot_root . old
umount -l /old
# Otherwise systemd would write this computer's kernel settings and start a device manager.
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
mount -o remount,ro /sys
exec env -i container=fedpfl-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set=-sys_time,-sys_module,-sys_boot,-syslog \
    /lib/systemd/systemd --unit=multi-user.target --log-target=journal
"""


def missing() -> str | None:
    """Say why there can be no machines here; None if there can be."""
    if os.geteuid() != 0:
        return "needs root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if absent or not SYSTEMD.exists():
        return f"not installed: {' '.join(absent) or 'systemd'}"
    if _cgroups() is None:
        return "no cgroup2 file system is mounted"
    return None


class Machine:
    """One machine; :meth:`start` boots it.

    Parameters
    ----------
    folder : Path
        For its layer; not on an overlay itself.
    name, address : str
        Host name, and IPv4 address in 10.87.0.0/24.
    checkout : Path, optional
        What it has in ``/srv/checkout``.
    units : sequence of str
        Services of this computer's packages that are on.
    """

    def __init__(
        self, folder: Path, name: str, address: str, checkout: Path | None = None, units: Sequence[str] = ()
    ) -> None:
        self.name, self.address = name, address
        self._folder, self._checkout, self._units = folder / name, checkout, units
        self._cgroup = _cgroups() / f"fedpfl-{name}-{os.getpid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0

    def start(self) -> None:
        """Boot it, and connect it to the others."""
        for part in ("upper", "work", "merged"):
            (self._folder / part).mkdir(parents=True)
        self._cgroup.mkdir()
        packages = sysconfig.get_path("purelib")
        boot = ["bash", "-c", _BOOT, "boot", str(self._folder), self.name, str(self._checkout or ""), sys.base_prefix]
        enter = f'echo $$ > {self._cgroup}/cgroup.procs && exec "$@"'
        spaces = [f"--{kind}" for kind in ("mount", "net", "pid", "uts", "ipc", "cgroup", "fork", "kill-child")]
        with (self._folder / "boot.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", enter, "enter", "unshare", *spaces, *boot, packages, " ".join(self._units), " ".join(OWN)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._wait("systemd", self._booted)
        ends = (f"{PREFIX}{self.address.rpartition('.')[2]}a", f"{PREFIX}{self.address.rpartition('.')[2]}b")
        _do("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", str(self._init))
        _do("ip", "link", "set", ends[0], "master", BRIDGE, "up")
        self.do("ip", "address", "add", f"{self.address}/24", "dev", ends[1])
        self.do("ip", "link", "set", ends[1], "up")
        self._wait("its services", lambda: self.run("systemctl", "is-active", "multi-user.target").returncode == 0)

    def run(self, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine, as its root."""
        enter = ["nsenter", "--target", str(self._init), "--all"]
        environment = [
            "env",
            "-i",
            "--chdir=/",
            f"HOME={HOME}",
            "LANG=C.UTF-8",
            "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        return subprocess.run([*enter, *environment, *command], capture_output=True, text=True, **options)  # type: ignore

    def do(self, *command: str, **options: object) -> str:
        """Run a command, which must succeed; return what it says."""
        done = self.run(*command, **options)
        assert done.returncode == 0, f"{self.name}: {' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def path(self, path: str) -> Path:
        """Return a file of the machine, seen from here."""
        if path.split("/")[1] in OWN:
            return self._folder / path[1:]
        # Not for programs that resolve links: to them this is a link to this computer's root.
        return Path(f"/proc/{self._init}/root{path}")

    def written(self) -> set[str]:
        """Return the paths below the root that differ from this computer's."""
        settings = {
            f"{part}/{path.relative_to(self._folder / part)}"
            for part in OWN
            for path in (self._folder / part).rglob("*")
        }
        upper = self._folder / "upper"
        return settings | {
            str(path.relative_to(upper))
            for path in upper.rglob("*")
            # Units that are on here are off there, and may be on again.
            if "systemd" in path.parts or not _same(path, Path("/") / path.relative_to(upper))
        }

    def stop(self) -> None:
        """End all of its processes and remove its layer."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init or self._process.pid, signal.SIGKILL)
            self._process.wait(30)
        deadline = time.monotonic() + 10
        while self._cgroup.exists() and time.monotonic() < deadline:
            for folder in sorted((p for p in self._cgroup.rglob("*") if p.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                self._cgroup.rmdir()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _booted(self) -> bool:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "systemd":
            return False
        self._init = int(children[0])
        return True

    def _wait(self, what: str, there: Callable[[], bool]) -> None:
        process = self._process
        assert process is not None
        log = self._folder / "boot.log"
        wait_until(
            there, lambda: process.poll() is None, lambda: f"{self.name}: {what} did not start: {log.read_text()}"
        )


@contextlib.contextmanager
def lan(machines: Sequence[Machine]):
    """Boot machines on a network of their own; stop them, and leave nothing behind."""
    try:
        _do("ip", "link", "add", BRIDGE, "type", "bridge")
        _do("ip", "link", "set", BRIDGE, "up")
        for machine in machines:
            machine.start()
        yield
    finally:
        for machine in machines:
            machine.stop()
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)


def _same(path: Path, other: Path) -> bool:
    if path.is_symlink() or other.is_symlink():
        return path.is_symlink() and other.is_symlink() and path.readlink() == other.readlink()
    if path.is_file() and other.is_file():
        return path.read_bytes() == other.read_bytes()
    return path.is_dir() and other.is_dir()


def _cgroups() -> Path | None:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return None


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
