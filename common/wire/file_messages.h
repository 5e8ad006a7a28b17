// Messages of a file transfer: between launcher and runner in either direction, and between runners
// if hosts relay pieces (then inside sealed records). README.md gives the order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sortie::wire {

/// Files are sent and compared in pieces of this size; the last piece of a file may be shorter.
inline constexpr std::uint64_t kPieceBytes = 1u << 20;
inline constexpr std::size_t kPieceHashBytes = 32;  // SHA-256

enum class FileKind : std::uint8_t { folder = 1, file = 2, symlink = 3 };

/// One file of a tree. Entries are ordered: a folder precedes its content. Paths are relative to
/// the folder of the transfer, without "." and "..".
struct FileEntry {
  std::string path;
  FileKind kind = FileKind::file;
  std::uint32_t mode = 0;   // permission bits, of 0777
  std::uint64_t size = 0;   // files only
  std::string hashes;       // files only: concatenated SHA-256 hashes of the pieces
  std::string link_target;  // symlinks only
};

enum class FilesPurpose : std::uint8_t {
  put = 1,    // the launcher sends a tree into `folder`
  get = 2,    // the runner sends `paths`
  stage = 3,  // the launcher sends a tree into the host's cache, under the name `key`
};

/// launcher -> runner: begins a transfer, after Hello and before any JobSpec.
struct FilesOpen {
  FilesPurpose purpose = FilesPurpose::put;
  std::string folder;  // put: created if missing; may be relative to the home folder
  std::vector<std::string> paths;
  std::string key;                // stage: hash of the tree, lower-case hex
  std::uint64_t cache_bytes = 0;  // stage: size that the cache is pruned to
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
  std::string relay_address;        // address at which other hosts may fetch pieces; empty = none
  std::uint8_t private_folder = 0;  // put, 1: folders that are created on the path to `folder` get
                                    // mode 0700, not that of the user's umask
};

/// From the side that has the files: the list of files, in one or more messages.
struct FilesManifest {
  std::vector<FileEntry> entries;
  std::uint8_t last = 0;
};

/// Pieces [first, first + count) of the file with index `entry`.
struct PieceRange {
  std::uint32_t entry = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// From the receiver of the files, once the manifest is complete: the pieces that it lacks. A
/// runner sends it again if another host stops supplying it; then the launcher sends the pieces.
struct FilesWanted {
  std::vector<PieceRange> ranges;
  std::uint8_t last = 0;
  std::uint16_t relay_port = 0;  // port on which this host supplies pieces to others; 0 = none
  std::string reason;            // if sent again: why the other host failed
};

struct FilePiece {
  std::uint32_t entry = 0;
  std::uint32_t piece = 0;
  std::string bytes;
  /// From a runner, without bytes: why it can not read the file any more. It sends no more pieces
  /// of it.
  std::string lost = {};
};

/// The receiver has processed `bytes` more of the pieces. At most kFileWindow may be in flight.
struct FilesCredit {
  std::uint64_t bytes = 0;
};

/// launcher -> runner: allow a host that knows `key` to fetch pieces over link number `link`.
struct FilesServe {
  std::uint32_t link = 0;
  std::string key;  // 32 bytes, only for this pair of hosts and this transfer
};
/// launcher -> runner: fetch the missing pieces from the host at this address.
struct FilesFetch {
  std::uint32_t link = 0;
  std::string key;
  std::string address;
  std::uint16_t port = 0;
};

/// runner -> launcher, from time to time: bytes of pieces that this host has received.
struct FilesProgress {
  std::uint64_t bytes = 0;
  std::string waits_for;  // for the user: why the transfer makes no progress; empty = it does
};

/// runner -> launcher: all files are complete, in place and synced to disk.
struct FilesDone {
  std::string folder;  // absolute; stage: the folder of the staged tree
  std::uint64_t files_changed = 0;
  std::uint64_t bytes_from_launcher = 0;
  std::uint64_t bytes_from_hosts = 0;
};

inline constexpr std::uint64_t kFileWindow = 4 * kPieceBytes;

}  // namespace sortie::wire
