#include "trainer/samples/token_ids.h"

#include <fmt/format.h>

#include "trainer/data/build_manifest.h"
#include "trainer/samples/job_token_files.h"

namespace sortie::trainer {

Result<> check_token_ids(const config::JobConfig& job) {
  return for_each_token_file(
      job, [&](const std::string& prefix, const std::string& key) -> Result<> {
        SORTIE_ASSIGN_OR_RETURN(const auto manifest, find_build_manifest(prefix));
        const BuildManifestPart* part = manifest ? part_of(*manifest, prefix) : nullptr;
        if (part == nullptr || part->max_id < job.model.vocab_size) return {};
        return fail(ErrorCode::config,
                    fmt::format("model.vocab_size: it is {}, but {} ({}) has token {}, as its "
                                "manifest says; set it to at least {}",
                                job.model.vocab_size, prefix, key, part->max_id, part->max_id + 1));
      });
}

}  // namespace sortie::trainer
