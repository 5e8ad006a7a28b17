// The list of families, by their name in [model] architecture.
#pragma once

#include <span>

#include "trainer/models/block.h"

namespace sortie::trainer {

std::span<const Family> families();
/// Returns the family with that name, which must exist: checking the config guarantees it.
const Family& family_of(std::string_view architecture);

}  // namespace sortie::trainer
