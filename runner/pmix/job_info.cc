#include "runner/pmix/job_info.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace sortie::runner {

pmix_value_t& InfoList::append(const char* key, pmix_data_type_t type) {
  pmix_info_t& info = infos_.emplace_back();
  std::memset(&info, 0, sizeof info);
  SORTIE_CHECK(std::strlen(key) <= PMIX_MAX_KEYLEN, "{}", key);
  std::strcpy(info.key, key);
  info.value.type = type;
  return info.value;
}

void InfoList::add(const char* key, const std::string& value) {
  append(key, PMIX_STRING).data.string = strings_.emplace_back(value).data();
}
void InfoList::add_u16(const char* key, std::uint16_t value) {
  append(key, PMIX_UINT16).data.uint16 = value;
}
void InfoList::add_u32(const char* key, std::uint32_t value) {
  append(key, PMIX_UINT32).data.uint32 = value;
}
void InfoList::add_rank(const char* key, pmix_rank_t value) {
  append(key, PMIX_PROC_RANK).data.rank = value;
}
void InfoList::add_bool(const char* key, bool value) {
  append(key, PMIX_BOOL).data.flag = value;
}
void InfoList::add_array(const char* key, InfoList list) {
  InfoList& kept = nested_.emplace_back(std::move(list));
  arrays_.push_back({PMIX_INFO, kept.size(), kept.data()});
  append(key, PMIX_DATA_ARRAY).data.darray = &arrays_.back();
}

InfoList make_job_info(const wire::PmixSetup& setup, const JobMap& job) {
  InfoList list;
  const std::vector<std::uint32_t>& local = job.ranks[job.my_host];
  const auto local_size = static_cast<std::uint32_t>(local.size());

  list.add(PMIX_JOBID, setup.nspace);
  list.add_bool(PMIX_SPAWNED, false);
  list.add_u32(PMIX_UNIV_SIZE, job.world_size());
  list.add_u32(PMIX_JOB_SIZE, job.world_size());
  list.add_u32(PMIX_MAX_PROCS, job.world_size());
  list.add_u32(PMIX_JOB_NUM_APPS, 1);
  list.add_u32(PMIX_APP_SIZE, job.world_size());
  list.add_rank(PMIX_APPLDR, 0);
  list.add_u32(PMIX_NUM_NODES, static_cast<std::uint32_t>(job.hosts.size()));
  list.add_u32(PMIX_LOCAL_SIZE, local_size);
  list.add_u32(PMIX_NODE_SIZE, local_size);
  list.add(PMIX_LOCAL_PEERS, fmt::format("{}", fmt::join(local, ",")));
  list.add_rank(PMIX_LOCALLDR, *std::ranges::min_element(local));
  list.add_u32(PMIX_USERID, getuid());
  list.add_u32(PMIX_GRPID, getgid());
  list.add(PMIX_TMPDIR, setup.tmp_dir);
  list.add(PMIX_NSDIR, setup.tmp_dir + "/ns");
  list.add_bool(PMIX_TDIR_RMCLEAN, true);

  // Plain lists: every libpmix accepts a string that none of its encodings recognises. The encoded
  // forms of PMIx_generate_regex have a separate type since libpmix 4.
  list.add(PMIX_NODE_MAP, fmt::format("{}", fmt::join(job.hosts, ",")));
  std::string proc_map;
  for (const auto& ranks : job.ranks) {
    if (&ranks != &job.ranks.front()) proc_map += ';';
    proc_map += fmt::format("{}", fmt::join(ranks, ","));
  }
  list.add(PMIX_PROC_MAP, proc_map);

  for (std::uint32_t host = 0; host < job.hosts.size(); ++host) {
    for (std::size_t index = 0; index < job.ranks[host].size(); ++index) {
      const std::uint32_t rank = job.ranks[host][index];
      InfoList proc;
      proc.add_rank(PMIX_RANK, rank);  // must be first: the following entries belong to this rank
      proc.add_u32(PMIX_APPNUM, 0);
      proc.add_rank(PMIX_GLOBAL_RANK, rank);
      proc.add_rank(PMIX_APP_RANK, rank);
      proc.add_u16(PMIX_LOCAL_RANK, static_cast<std::uint16_t>(index));
      proc.add_u16(PMIX_NODE_RANK, static_cast<std::uint16_t>(index));
      proc.add(PMIX_HOSTNAME, job.hosts[host]);
      proc.add_u32(PMIX_NODEID, host);
      if (host == job.my_host) proc.add(PMIX_PROCDIR, fmt::format("{}/ns/{}", setup.tmp_dir, rank));
      list.add_array(PMIX_PROC_DATA, std::move(proc));
    }
  }
  return list;
}

}  // namespace sortie::runner
