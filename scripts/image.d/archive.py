"""Writes an image as an archive for `docker load`, `podman load` and `ctr image import`. The same files make the same
bytes, and so the same image id: times and owners are fixed, names are sorted."""

import hashlib
import io
import json
import os
import tarfile

EPOCH = 1700000000


def parents(path):
    parts = path.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def write_layer(entries, path):
    """Writes the layer's tar to `path`, and returns its diff id."""
    folders = {folder: ("folder", 0o755, 0) for name in entries for folder in parents(name)}
    whole = {**folders, **entries}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(whole):
            kind, *rest = whole[name]
            info = tarfile.TarInfo(name.lstrip("/"))
            info.mtime = EPOCH
            if kind == "folder":
                info.type, info.mode, info.uid = tarfile.DIRTYPE, rest[0], rest[1]
                info.gid = info.uid
                tar.addfile(info)
            elif kind == "link":
                info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, rest[0]
                tar.addfile(info)
            elif kind == "text":
                info.size, info.mode = len(rest[0]), rest[1]
                tar.addfile(info, io.BytesIO(rest[0]))
            else:
                info.size, info.mode = os.path.getsize(rest[0]), rest[1]
                with open(rest[0], "rb") as file:
                    tar.addfile(info, file)
    return "sha256:" + digest(path)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_image(layers, settings, name, folder, output):
    """layers: [(description, entries)]. Returns the image id."""
    folder.mkdir(parents=True, exist_ok=True)
    diffs = []
    for number, (_, entries) in enumerate(layers):
        diffs.append(write_layer(entries, folder / f"layer-{number}.tar"))
    created = "2023-11-14T22:13:20Z"
    config = {"architecture": "amd64", "os": "linux", "created": created, "config": settings,
              "rootfs": {"type": "layers", "diff_ids": diffs},
              "history": [{"created": created, "created_by": what} for what, _ in layers]}
    text = json.dumps(config, sort_keys=True, separators=(",", ":")).encode()
    image_id = hashlib.sha256(text).hexdigest()
    names = [f"{diff.removeprefix('sha256:')}/layer.tar" for diff in diffs]
    manifest = json.dumps([{"Config": f"{image_id}.json", "RepoTags": [name], "Layers": names}]).encode()
    unfinished = output.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w", format=tarfile.GNU_FORMAT) as tar:
        for path, data in ((f"{image_id}.json", text), ("manifest.json", manifest)):
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.mtime = len(data), 0o644, EPOCH
            tar.addfile(info, io.BytesIO(data))
        for number, path in enumerate(names):
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.mtime = os.path.getsize(folder / f"layer-{number}.tar"), 0o644, EPOCH
            with open(folder / f"layer-{number}.tar", "rb") as file:
                tar.addfile(info, file)
    for number in range(len(layers)):
        (folder / f"layer-{number}.tar").unlink()
    os.replace(unfinished, output)
    return f"sha256:{image_id}"
