"""The system files of an image, from the Debian packages of this machine: the libraries that the programs load, Open MPI's and
PMIx's plugins, and a shell. Nothing is downloaded."""

import glob
import os
import re
import subprocess

BUSYBOX = "/bin/busybox"
ORTED = "/usr/bin/orted"  # started by an MPI program that runs without a launcher
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# Libraries that are loaded by name at run time, and so are in no program's list of libraries.
PLUGINS = [f"{LIBRARIES}/openmpi/lib/openmpi3/*.so", f"{LIBRARIES}/pmix2/lib/pmix/*.so", f"{LIBRARIES}/libpmix.so.2",
           f"{LIBRARIES}/libnss_files.so.2", f"{LIBRARIES}/libnss_dns.so.2"]
DATA = ["/etc/openmpi", "/usr/share/openmpi", f"{LIBRARIES}/pmix2/etc", f"{LIBRARIES}/pmix2/share",
        "/usr/lib/locale/C.utf8"]
TEXTS = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nsortie:x:1000:1000:sortie:/home/sortie:/bin/sh\n"
                   "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "/etc/group": "root:x:0:\nsortie:x:1000:\nnogroup:x:65534:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
FOLDERS = {"/home/sortie": (0o755, 1000), "/root": (0o700, 0), "/tmp": (0o1777, 0), "/var/tmp": (0o1777, 0),
           "/run": (0o755, 0), "/proc": (0o555, 0), "/sys": (0o555, 0), "/dev": (0o755, 0)}


class ImageError(Exception):
    """One line for the user."""


def run(*argv):
    done = subprocess.run(list(map(str, argv)), text=True, capture_output=True)
    if done.returncode != 0:
        raise ImageError(f"{' '.join(map(str, argv))[:200]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def libraries_of(programs):
    """Returns the paths of all shared libraries that the programs load, including the loader, by the names that the programs use."""
    found = set()
    # One call for all programs: ldd is a shell script, which takes most of its time to start.
    for line in run("ldd", *programs).splitlines():
        if "not found" in line:
            raise ImageError(f"a library is missing here: {line.strip()}; run: scripts/setup")
        match = re.search(r"(?:=> )?(/\S+) \(0x", line)
        if match:
            found.add(match.group(1))
    return found


class Tree:
    """The content of a layer: {path: ("file", source, mode) | ("link", target) | ("text", bytes, mode) | ("folder", mode, owner)}.
    Paths contain no symlinks: /lib is a symlink to /usr/lib, as everywhere in Debian."""

    def __init__(self):
        self.entries = {}

    def file(self, source, path=None, mode=None):
        path = merged(path or source)
        status = os.stat(source)
        self.entries[path] = ("file", os.path.realpath(source), mode or (0o755 if status.st_mode & 0o111 else 0o644))

    def link(self, path, target):
        self.entries.setdefault(merged(path), ("link", target))

    def library(self, path):
        """Adds the library and the symlinks that lead to it."""
        path = merged(path)
        while os.path.islink(path):
            target = os.readlink(path)
            self.link(path, target)
            path = merged(os.path.normpath(os.path.join(os.path.dirname(path), target)))
        self.file(path)

    def folder_of(self, source):
        for base, _, names in os.walk(source):
            for name in names:
                path = os.path.join(base, name)
                if os.path.exists(path):
                    self.file(path)


def merged(path):
    return re.sub(r"^/(bin|sbin|lib|lib64)/", r"/usr/\1/", str(path))


def system(programs):
    """Returns the layer below the programs: libraries, shell, configuration, and the licences of all copied files."""
    if not os.path.exists(BUSYBOX):
        raise ImageError(f"{BUSYBOX} is missing; run: scripts/setup --containers")
    tree = Tree()
    plugins = sorted(path for pattern in PLUGINS for path in glob.glob(pattern))
    if not os.path.exists(ORTED) or not any("/openmpi/" in path for path in plugins) \
            or not any("pmix" in path for path in plugins):
        raise ImageError("Open MPI or libpmix is missing here; run: scripts/setup")
    for path in sorted(libraries_of([*programs, ORTED, *plugins])) + plugins:
        tree.library(path)
    for path in DATA:
        tree.folder_of(path)
    tree.file(BUSYBOX)
    tree.file(ORTED)
    for applet in run(BUSYBOX, "--list-full").split():
        if "/" in applet:
            tree.link("/" + applet, "/usr/bin/busybox")
    for name in ("bin", "sbin", "lib", "lib64"):
        tree.entries[f"/{name}"] = ("link", f"usr/{name}")
    for path, text in TEXTS.items():
        tree.entries[path] = ("text", text.encode(), 0o644)
    for path, (mode, owner) in FOLDERS.items():
        tree.entries[path] = ("folder", mode, owner)
    for package in packages_of([path for path, entry in tree.entries.items() if entry[0] == "file"]):
        if os.path.exists(f"/usr/share/doc/{package}/copyright"):
            tree.file(f"/usr/share/doc/{package}/copyright")
    return tree


def packages_of(paths):
    """Returns the names of the packages that own the files. dpkg knows some files by their path before /usr was merged."""
    both = [*paths, *(path.removeprefix("/usr") for path in paths if re.match(r"/usr/(bin|sbin|lib|lib64)/", path))]
    done = subprocess.run(["dpkg-query", "--search", *both], text=True, capture_output=True)
    return sorted({line.split(":", 1)[0] for line in done.stdout.splitlines() if not line.startswith("diversion ")})
