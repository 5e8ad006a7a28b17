#include "runner/files/stage_extras.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/files/entry_path.h"
#include "runner/files/stage_files.h"

namespace sortie::runner {

namespace fs = std::filesystem;

StageExtras::StageExtras(std::string tree, const std::vector<wire::FileEntry>& entries)
    : tree_(std::move(tree)), entries_(&entries) {
  std::error_code error;
  at_ =
      fs::recursive_directory_iterator(tree_, fs::directory_options::skip_permission_denied, error);
}

bool StageExtras::listed(const std::string& path) const {
  return std::ranges::binary_search(*entries_, std::string_view(path).substr(tree_.size() + 1),
                                    files::entry_path_less, &wire::FileEntry::path);
}

bool StageExtras::step() {
  std::error_code error;
  for (std::size_t left = kStagedAtOnce; left > 0; --left) {
    if (at_ == fs::recursive_directory_iterator()) return true;
    const std::string path = at_->path().string();
    const bool extra = !listed(path);
    if (extra) {
      if (!remove_some(path)) return false;
      if (fs::exists(fs::symlink_status(path, error)))
        log::warning("stage cache: can not remove {}, which a job has added", path);
      at_.disable_recursion_pending();
    }
    at_.increment(error);
    if (extra) return false;
  }
  return false;
}

}  // namespace sortie::runner
