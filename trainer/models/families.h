// All families, by the name in [model] architecture.
#pragma once

#include <span>

#include "trainer/models/block.h"

namespace sortie::trainer {

std::span<const Family> families();
/// The family of that name; it exists where the config was checked.
const Family& family_of(std::string_view architecture);

}  // namespace sortie::trainer
