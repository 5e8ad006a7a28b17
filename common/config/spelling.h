// Messages about a key or section that does not exist: they name the nearest existing one, or the
// one that corresponds to another training suite's spelling.
#pragma once

#include <string>
#include <string_view>

#include "common/config/fields.h"

namespace sortie::config {

/// True for "runner" and "runner.ssh".
bool is_section(std::string_view name);

/// "unknown key topology.mico_batch_size; did you mean topology.micro_batch_size?"
std::string unknown_key(std::string_view key);

/// The existing key that an unknown one probably means; nullptr if none is near.
const Field* meant_field(std::string_view key);

/// "unknown section [runer]; did you mean [runner]?"
std::string unknown_section(std::string_view name);

/// The existing section that an unknown one probably means; empty if none is near.
std::string_view meant_section(std::string_view name);

}  // namespace sortie::config
