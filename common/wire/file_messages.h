// Messages of a file transfer: launcher and runner in either direction, and runner to runner when
// hosts pass pieces on (there inside sealed records). README.md gives the order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sortie::wire {

/// Files travel and are compared in pieces of this size; the last of a file may be shorter.
inline constexpr std::uint64_t kPieceBytes = 1u << 20;
inline constexpr std::size_t kPieceHashBytes = 32;  // SHA-256

enum class FileKind : std::uint8_t { folder = 1, file = 2, symlink = 3 };

/// One file of a tree. Entries are in order (a folder before what is in it), paths relative to the
/// folder of the transfer, without "." and "..".
struct FileEntry {
  std::string path;
  FileKind kind = FileKind::file;
  std::uint32_t mode = 0;   // permission bits, of 0777
  std::uint64_t size = 0;   // of a file
  std::string hashes;       // of a file: SHA-256 of each piece, one after the other
  std::string link_target;  // of a symlink
};

enum class FilesPurpose : std::uint8_t {
  put = 1,    // the launcher sends a tree into `folder`
  get = 2,    // the runner sends `paths`
  stage = 3,  // the launcher sends a tree into the host's cache, under the name `key`
};

/// launcher -> runner: begins a transfer, after Hello and before any JobSpec.
struct FilesOpen {
  FilesPurpose purpose = FilesPurpose::put;
  std::string folder;  // put: made when it is not there; relative to the home folder
  std::vector<std::string> paths;
  std::string key;                // stage: hash of the tree, lower-case hex
  std::uint64_t cache_bytes = 0;  // stage: size that the cache is pruned to
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
  std::string relay_address;        // where other hosts may fetch pieces; empty: nowhere
  std::uint8_t private_folder = 0;  // put: folders made on the way to it are 0700, else as the
                                    // user's umask there has it
};

/// From the side that has the files: what there is, in as many messages as it takes.
struct FilesManifest {
  std::vector<FileEntry> entries;
  std::uint8_t last = 0;
};

/// Pieces [first, first + count) of the file that is entry number `entry`.
struct PieceRange {
  std::uint32_t entry = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// From the side that gets the files, once the manifest is complete: what it lacks. A runner sends
/// it again when another host no longer gives it pieces: the launcher then does.
struct FilesWanted {
  std::vector<PieceRange> ranges;
  std::uint8_t last = 0;
  std::uint16_t relay_port = 0;  // where this host gives pieces to others; 0: it does not
  std::string reason;            // sent again: why the other host is no help
};

struct FilePiece {
  std::uint32_t entry = 0;
  std::uint32_t piece = 0;
  std::string bytes;
};

/// The receiver has taken in `bytes` more of the pieces; at most kFileWindow may be on their way.
struct FilesCredit {
  std::uint64_t bytes = 0;
};

/// launcher -> runner: a host that knows `key` may fetch pieces through link number `link`.
struct FilesServe {
  std::uint32_t link = 0;
  std::string key;  // 32 bytes, for this pair of hosts and this transfer alone
};
/// launcher -> runner: what this host lacks is there, not here.
struct FilesFetch {
  std::uint32_t link = 0;
  std::string key;
  std::string address;
  std::uint16_t port = 0;
};

/// runner -> launcher, now and then: bytes of pieces that this host has taken in.
struct FilesProgress {
  std::uint64_t bytes = 0;
  std::string waits_for;  // for a person: why nothing moves; empty: it does
};

/// runner -> launcher: everything is in its place and on the disk.
struct FilesDone {
  std::string folder;  // absolute; stage: the folder of the staged tree
  std::uint64_t files_changed = 0;
  std::uint64_t bytes_from_launcher = 0;
  std::uint64_t bytes_from_hosts = 0;
};

inline constexpr std::uint64_t kFileWindow = 4 * kPieceBytes;

}  // namespace sortie::wire
