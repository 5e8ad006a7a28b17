// TreeWriter: the receiving end of a transfer. It compares existing files piece by piece, accepts
// pieces in any order and from any peer (each is checked against its hash), and renames finished
// files to their final names. inspect() and put() handle at most one piece per call. A crash at any
// time leaves the old files or the new ones, and parts with which the next transfer continues.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/files/folder.h"
#include "common/files/tree_sync.h"
#include "common/wire/file_messages.h"

namespace sortie::files {

class TreeWriter {
 public:
  /// `entries` come from a ManifestReader. A symlink without a target is skipped.
  TreeWriter(Folder folder, std::vector<wire::FileEntry> entries);

  /// Performs one step of creating folders and comparing files. Returns true when all is compared.
  Result<bool> inspect();

  const std::vector<wire::FileEntry>& entries() const { return entries_; }
  const Folder& folder() const { return folder_; }
  std::vector<wire::PieceRange> missing() const;
  std::uint64_t missing_bytes() const { return missing_bytes_; }
  bool has(std::uint32_t entry, std::uint32_t piece) const;

  enum class Taken { wrote, had, wrong };
  /// Takes a piece from a peer. wrote: stored; had: not needed; wrong: differs from the manifest
  /// and is not stored. Fails if the disk fails or no file has such a piece.
  Result<Taken> put(std::uint32_t entry, std::uint32_t piece, std::string_view bytes);
  /// The sender has no more pieces of this file: it is not waited for, and what is at its name
  /// stays. Fails if no piece of it is missing.
  Result<> leave_out(std::uint32_t entry);
  bool left_out(std::uint32_t entry) const {
    return entry < states_.size() && states_[entry].left_out;
  }
  /// Reads a piece for another host, which checks it.
  Result<> read(std::uint32_t entry, std::uint32_t piece, std::string& bytes);

  /// Call when nothing is missing: performs one step of syncing, renaming and setting modes, or of
  /// reading a piece again that another transfer may have changed.
  /// Returns true when all files are in place.
  Result<bool> settle();
  std::uint64_t files_changed() const { return files_changed_; }
  TreeSync& sync() { return sync_; }

 private:
  struct State {
    std::vector<bool> missing;  // per piece; empty = none is missing
    std::uint32_t lacking = 0;  // number of missing pieces
    bool part = false;          // its content is, or will be, in the part
    bool sized = false;         // the part has the final size
    bool left_out = false;      // the sender has no more pieces of it
    bool shared = false;        // another transfer may have written to the part meanwhile
  };
  struct OpenPart {
    std::uint32_t entry;
    Fd fd;
  };
  Result<bool> inspect_file();
  Result<> begin_file(int parent);
  Result<> end_comparison(int parent);
  Result<int> part_fd(std::uint32_t entry);
  void forget_part(std::uint32_t entry);
  /// Performs one step; returns true when the file is in place.
  Result<bool> settle_file(std::uint32_t entry);
  Error at_entry(Error error, std::uint32_t entry) const;
  /// Adds which file has the data of an entry that could not be written completely.
  Error with_part(Error error, std::uint32_t entry) const;

  Folder folder_;
  std::vector<wire::FileEntry> entries_;
  std::vector<State> states_;
  std::list<OpenPart> open_parts_;  // most recently used first
  std::uint64_t missing_bytes_ = 0, files_changed_ = 0;

  // inspect(): the file that is being compared
  std::uint32_t entry_ = 0;
  std::uint64_t piece_ = 0;
  bool begun_ = false, copying_ = false, same_size_ = false;
  bool had_part_ = false;  // of an earlier transfer
  Fd target_;
  std::vector<bool> in_target_;
  std::string buffer_;
  // settle()
  std::uint32_t settled_ = 0, folders_settled_ = 0;
  std::uint64_t checked_ = 0;  // pieces of a shared part that were read again
  TreeSync sync_;
  // read()
  std::uint32_t reading_ = UINT32_MAX;
  Fd reading_fd_;
};

}  // namespace sortie::files
