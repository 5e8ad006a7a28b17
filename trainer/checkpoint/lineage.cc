#include "trainer/checkpoint/lineage.h"

#include <fmt/core.h>

#include <random>

#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

constexpr std::size_t kDigits = 16;

const std::string& first_run_of(const Manifest& manifest) {
  return manifest.first_run_id.empty() ? manifest.run_id : manifest.first_run_id;
}

}  // namespace

std::string new_lineage() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string lineage_of_content(std::string_view content) {
  return sha256_hex(content).substr(0, kDigits);
}

std::string lineage_of(const Manifest& manifest) {
  return manifest.lineage.empty() ? first_run_of(manifest) : manifest.lineage;
}

bool same_run(const Manifest& a, const Manifest& b) {
  return a.run_id != kImportRun && b.run_id != kImportRun && !lineage_of(a).empty() &&
         lineage_of(a) == lineage_of(b);
}

bool may_have_started_from(const Manifest& later, const Manifest& earlier) {
  return later.lineage.empty() &&
         (later.first_run_id.empty() || later.first_run_id == first_run_of(earlier));
}

}  // namespace sortie::trainer
