// Rejects a JobSpec that can not be run, before it has any effect on this host. Pure.
#pragma once

#include <string_view>

#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::runner {

inline constexpr std::size_t kMaxRanksPerHost = 4096;
inline constexpr std::uint32_t kMaxWorldSize = 1u << 20;
inline constexpr std::uint32_t kMinOutputWindow = 64u << 10;
inline constexpr std::uint32_t kMaxOutputWindow = 1u << 30;
inline constexpr std::uint32_t kMaxInputWindow = 16u << 20;

/// Whether `id` matches [a-z0-9-]{1,64}: it becomes part of folder and cgroup names.
bool is_run_id(std::string_view id);

/// Fails with ErrorCode::protocol and names the field: a correct launcher never sends such a spec.
Result<> check_job(const wire::JobSpec& job);
/// Checks environment variables, also those of Start. `where` names them in errors.
Result<> check_environment(const wire::Environment& env, std::string_view where);

}  // namespace sortie::runner
