#include "trainer/checkpoint/rollbacks.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/json_text.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/small_file.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kRollbackFormat = "sortie-rollbacks 1";

OrderedJson to_json(const std::vector<Rollback>& rollbacks) {
  OrderedJson list = OrderedJson::array();
  for (const Rollback& one : rollbacks)
    list.push_back({{"from", one.from},
                    {"to", one.to},
                    {"skipped_samples", one.skipped},
                    {"reason", one.reason}});
  return list;
}

/// Throws OrderedJson::exception.
std::vector<Rollback> from_json(const OrderedJson& list) {
  if (!list.is_array()) throw OrderedJson::other_error::create(501, "not a list", &list);
  std::vector<Rollback> rollbacks;
  for (const OrderedJson& json : list) {
    const auto number = [&](const char* name) {
      const OrderedJson& value = json.at(name);
      if (!value.is_number_integer() || value.get<std::int64_t>() < 0)
        throw OrderedJson::other_error::create(501, std::string(name) + " is no number of steps",
                                               &value);
      return value.get<std::int64_t>();
    };
    rollbacks.push_back(
        {number("from"), number("to"), number("skipped_samples"), json.value("reason", "")});
    if (rollbacks.back().to > rollbacks.back().from)
      throw OrderedJson::other_error::create(501, "a rollback to a later step", &json);
  }
  return rollbacks;
}

template <class Read>
auto understand(std::string_view text, std::string_view where, Read read)
    -> Result<decltype(read(OrderedJson()))> {
  try {
    return read(OrderedJson::parse(text));
  } catch (const OrderedJson::exception& error) {
    return fail(
        ErrorCode::checkpoint,
        fmt::format("{}: not a list of rollbacks: {}; it says which checkpoints count: copy "
                    "it again, or move it and the checkpoints of later steps away",
                    where, error.what()));
  }
}

}  // namespace

std::vector<SkippedSamples> skipped_by(const std::vector<Rollback>& rollbacks) {
  std::vector<SkippedSamples> skipped;
  for (const Rollback& one : rollbacks) {
    if (one.skipped == 0) continue;
    // It replaces what earlier rollbacks skip from the step on that this one went back to.
    std::erase_if(skipped, [&](const SkippedSamples& old) { return old.after_step >= one.to; });
    skipped.push_back({one.to, one.skipped});
  }
  return skipped;
}

std::int64_t skipped_before(const std::vector<SkippedSamples>& skipped, std::int64_t step) {
  std::int64_t sum = 0;
  for (const SkippedSamples& one : skipped)
    if (one.after_step < step) sum += one.samples;
  return sum;
}

std::int64_t rollbacks_in_a_row(const std::vector<Rollback>& rollbacks) {
  std::int64_t count = 0, furthest = 0;
  for (const Rollback& one : rollbacks) {
    count = one.from > furthest ? 1 : count + 1;
    furthest = std::max(furthest, one.from);
  }
  return count;
}

Result<std::optional<RollbackFile>> read_rollbacks(const fs::path& save_dir) {
  const fs::path path = save_dir / kRollbackFile;
  Result<std::string> text = read_file(path, std::size_t{16} << 20);
  if (!text && text.error().code == ErrorCode::not_found) return std::nullopt;
  if (!text) return std::unexpected(std::move(text).error());
  return understand(
      *text, path.string(), [](const OrderedJson& root) -> std::optional<RollbackFile> {
        if (root.at("format") != kRollbackFormat)
          throw OrderedJson::other_error::create(501, "of another format", &root);
        return RollbackFile{root.at("lineage").get<std::string>(), from_json(root.at("rollbacks"))};
      });
}

Result<> write_rollbacks(const fs::path& save_dir, const RollbackFile& file) {
  const OrderedJson root = {{"format", kRollbackFormat},
                            {"lineage", file.lineage},
                            {"rollbacks", to_json(file.rollbacks)}};
  const std::string text = json_text(root, 1) + "\n";
  const fs::path written = save_dir / fmt::format(".tmp-rollbacks.{}", new_lineage());
  SORTIE_TRY(write_small_file(written, text));
  SORTIE_TRY(file_ops::rename_path(written, save_dir / kRollbackFile));
  return file_ops::sync_dir(save_dir);
}

bool is_abandoned(const Manifest& manifest, const std::optional<RollbackFile>& file) {
  if (!file || file->lineage != manifest.lineage) return false;
  for (std::size_t i = manifest.rollbacks.size(); i < file->rollbacks.size(); ++i)
    if (file->rollbacks[i].to < manifest.step) return true;
  return false;
}

std::vector<Rollback> rollbacks_from(const Manifest& manifest,
                                     const std::optional<RollbackFile>& file) {
  if (!file || file->lineage != manifest.lineage) return manifest.rollbacks;
  const auto& own = manifest.rollbacks;
  const bool extends = file->rollbacks.size() >= own.size() &&
                       std::equal(own.begin(), own.end(), file->rollbacks.begin());
  return extends ? file->rollbacks : own;
}

std::string to_json_text(const std::vector<Rollback>& rollbacks) {
  return json_text(to_json(rollbacks));
}

Result<std::vector<Rollback>> parse_rollbacks(std::string_view text, std::string_view where) {
  return understand(text, where, [](const OrderedJson& root) { return from_json(root); });
}

}  // namespace sortie::trainer
