// TreeWriter: the receiving end of a transfer. Compares what is there piece by piece, takes pieces
// in any order and from anybody (each is checked against its hash), and puts finished files into
// their place at once. All in steps of at most one piece; a crash at any moment leaves the old
// files or the new ones, and parts from which the next transfer goes on.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/files/folder.h"
#include "common/wire/file_messages.h"

namespace sortie::files {

class TreeWriter {
 public:
  /// `entries` as a ManifestReader gave them; a symlink without a target is left out.
  TreeWriter(Folder folder, std::vector<wire::FileEntry> entries);

  /// One step of making folders and comparing files. True when all is compared.
  Result<bool> inspect();

  const std::vector<wire::FileEntry>& entries() const { return entries_; }
  const Folder& folder() const { return folder_; }
  std::vector<wire::PieceRange> missing() const;
  std::uint64_t missing_bytes() const { return missing_bytes_; }
  bool has(std::uint32_t entry, std::uint32_t piece) const;

  enum class Taken { wrote, had, wrong };
  /// A piece from a peer: written, or had already, or not what the manifest says (nothing is
  /// written). Error: the disk, or a piece that no file has.
  Result<Taken> put(std::uint32_t entry, std::uint32_t piece, std::string_view bytes);
  /// A piece that is here, for another host. Its receiver checks it.
  Result<> read(std::uint32_t entry, std::uint32_t piece, std::string& bytes);

  /// Once nothing is missing: one step of syncing, renaming, modes. True when all is in its place.
  Result<bool> settle();
  std::uint64_t files_changed() const { return files_changed_; }

 private:
  struct State {
    std::vector<bool> missing;  // empty: nothing is missing
    std::uint32_t lacking = 0;  // how many of them
    bool part = false;          // its bytes are in the part
    bool shared = false;        // somebody else could have written to the part meanwhile
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
  Result<> settle_file(std::uint32_t entry);
  Result<bool> still_whole(std::uint32_t entry, int part);
  Error at_entry(Error error, std::uint32_t entry) const;

  Folder folder_;
  std::vector<wire::FileEntry> entries_;
  std::vector<State> states_;
  std::list<OpenPart> open_parts_;  // the last used one first
  std::uint64_t missing_bytes_ = 0, files_changed_ = 0;

  // inspect(): the file that is being compared
  std::uint32_t entry_ = 0;
  std::uint64_t piece_ = 0;
  bool begun_ = false, copying_ = false, same_size_ = false;
  Fd target_, old_part_;
  std::vector<bool> in_target_, in_part_;
  std::string buffer_;
  // settle()
  std::uint32_t settled_ = 0, folders_settled_ = 0;
  // read()
  std::uint32_t reading_ = UINT32_MAX;
  Fd reading_fd_;
};

}  // namespace sortie::files
