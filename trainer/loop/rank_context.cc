#include "trainer/loop/rank_context.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "common/base/environment.h"
#include "common/base/host_name.h"
#include "trainer/parallel/engine.h"

namespace sortie::trainer {
namespace {

Result<int> number(const char* name, int missing, int low, int high) {
  const std::string text = environment_variable(name);
  if (text.empty()) return missing;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // "OMP_NUM_THREADS=4,2" is legal: the first level counts.
  if (error != std::errc() || (*end != '\0' && *end != ',') || value < low || value > high)
    return fail(ErrorCode::config,
                fmt::format("environment: {}='{}': a number from {} to {} is expected", name, text,
                            low, high));
  return value;
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

}  // namespace

Result<RankContext> rank_context_from_environment() {
  constexpr int kMaxRanks = 1 << 20;
  RankContext context;
  SORTIE_ASSIGN_OR_RETURN(context.world_size, number("WORLD_SIZE", 1, 1, kMaxRanks));
  SORTIE_ASSIGN_OR_RETURN(context.rank, number("RANK", 0, 0, context.world_size - 1));
  SORTIE_ASSIGN_OR_RETURN(context.local_rank, number("LOCAL_RANK", 0, 0, kMaxRanks));
  SORTIE_ASSIGN_OR_RETURN(context.local_ranks, number("LOCAL_WORLD_SIZE", 1, 1, kMaxRanks));
  SORTIE_ASSIGN_OR_RETURN(context.attempt, number("SORTIE_ATTEMPT", 1, 1, 1 << 30));
  SORTIE_ASSIGN_OR_RETURN(context.threads, number("OMP_NUM_THREADS", usable_cores(), 1, 4096));
  SORTIE_ASSIGN_OR_RETURN(context.timed_products, number("SORTIE_TIMED_PRODUCTS", 8, 1, 64));
  SORTIE_ASSIGN_OR_RETURN(context.sites, number("SORTIE_SITES", 0, 0, kMaxRanks));
  SORTIE_ASSIGN_OR_RETURN(context.site_index, number("SORTIE_SITE_INDEX", 0, 0, kMaxRanks));
  SORTIE_TRY(read_communication_limit());  // read where an error would end the rank
  context.site = environment_variable("SORTIE_SITE");
  if (context.sites > 0 && context.site.empty())
    return fail(ErrorCode::config,
                "environment: SORTIE_SITES is set and SORTIE_SITE is not: the name of this rank's "
                "site is expected");
  context.host = environment_variable("SORTIE_HOST");
  if (context.host.empty()) context.host = host_name();
  context.run_id = environment_variable("SORTIE_RUN_ID");
  context.config_path = environment_variable("SORTIE_CONFIG");
  context.socket_path = environment_variable("SORTIE_SOCKET");
  context.forward_path = environment_variable("SORTIE_FORWARD");
  context.memory_folder = environment_variable("SORTIE_MEMORY");
  return context;
}

}  // namespace sortie::trainer
