#include "trainer/parallel/rank_set.h"

#include <fmt/core.h>

#include "common/config/hostlist.h"

namespace sortie::trainer {

void RankSet::add(int rank, const std::string& host) {
  ranks_.push_back(static_cast<std::uint32_t>(rank));
  if (!host.empty()) hosts_.insert(host);
}

std::string RankSet::rank_text() const {
  return fmt::format("rank{} {}", ranks_.size() == 1 ? "" : "s", cpu::cpu_list_text(ranks_));
}

std::string RankSet::host_text() const {
  return config::fold_host_names({hosts_.begin(), hosts_.end()});
}

std::string RankSet::text() const {
  return hosts_.empty() ? rank_text() : fmt::format("{} ({})", rank_text(), host_text());
}

}  // namespace sortie::trainer
