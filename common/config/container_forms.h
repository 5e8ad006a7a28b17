// Text of [runner.container] with a form of its own: "why; what to do", and nothing for good text.
// And sizes, as engines and people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::config {

std::string check_engine(std::string_view text);
std::string check_image(std::string_view text);
std::string check_ipc(std::string_view text);
std::string check_engine_network(std::string_view text);
std::string check_device(std::string_view text);
std::string check_ulimit(std::string_view name);
std::string check_ulimit_value(std::string_view name, std::string_view value);
std::string check_capability(std::string_view text);
std::string check_label(std::string_view name);
std::string check_container_user(std::string_view text);
std::string check_inner_path(std::string_view text);
std::string check_size(std::string_view text);
/// The items of one mount, joined by NUL.
std::string check_mount(std::string_view items);

/// "16GiB", "512m", "1.5g", "65536": k, m, g, t with or without b, ib; powers of 1024 all, as
/// Docker has it. The error is "why; what to do".
Result<std::uint64_t> parse_size(std::string_view text);

/// The options of a mount: what engines know, in any order.
std::string check_mount_options(std::string_view options);

/// Items of a list in a list, as check_mount takes them.
std::string join_items(const std::vector<std::string>& items);
std::vector<std::string> split_items(std::string_view text, char separator);

/// "CAP_SYS_PTRACE" as "SYS_PTRACE".
std::string_view capability_name(std::string_view text);

}  // namespace sortie::config
