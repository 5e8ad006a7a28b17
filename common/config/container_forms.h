// Checks of text in [runner.container]: each returns "why; what to do", or "" for valid text. Also
// parses sizes, as engines and users write them.
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

/// Parses "16GiB", "512m", "1.5g", "65536". The units k, m, g, t and p may be followed by b or ib.
/// All are powers of 1024, as in Docker. The error is "why; what to do".
Result<std::uint64_t> parse_size(std::string_view text);

/// Checks the options of a mount: those that engines support, in any order.
std::string check_mount_options(std::string_view options);

/// Joins the items of an inner list by NUL, as check_mount() expects them.
std::string join_items(const std::vector<std::string>& items);

/// Removes the prefix "CAP_": "SYS_PTRACE" for "CAP_SYS_PTRACE".
std::string_view capability_name(std::string_view text);

}  // namespace sortie::config
