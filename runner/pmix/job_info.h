// Lists of pmix_info_t, built by hand because macros of the PMIx headers call into the library, and
// the list that describes a job to PMIx_server_register_nspace.
#pragma once

#include <pmix_common.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/wire/message.h"
#include "runner/pmix/job_map.h"

namespace sortie::runner {

/// Owns everything that its entries point to. Must outlive the call that receives it; for
/// asynchronous PMIx calls, until their callback.
class InfoList {
 public:
  void add(const char* key, const std::string& value);
  void add_u16(const char* key, std::uint16_t value);
  void add_u32(const char* key, std::uint32_t value);
  void add_rank(const char* key, pmix_rank_t value);
  void add_bool(const char* key, bool value);
  /// A nested list, as a PMIX_DATA_ARRAY of PMIX_INFO.
  void add_array(const char* key, InfoList list);

  pmix_info_t* data() { return infos_.data(); }
  std::size_t size() const { return infos_.size(); }

 private:
  pmix_value_t& append(const char* key, pmix_data_type_t type);

  std::vector<pmix_info_t> infos_;
  std::deque<std::string> strings_;  // deque: elements never move
  std::deque<InfoList> nested_;
  std::deque<pmix_data_array_t> arrays_;
};

/// Everything that Open MPI's startup reads, so that a libpmix that derives nothing by itself works
/// too.
InfoList make_job_info(const wire::PmixSetup& setup, const JobMap& job);

}  // namespace sortie::runner
