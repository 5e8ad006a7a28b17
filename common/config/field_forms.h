// Forms and limits that fields of several sections use.
#pragma once

#include "common/config/fields.h"
#include "common/config/forms.h"

namespace sortie::config {

inline constexpr std::int64_t kMaxInt32 = 2'147'483'647;
inline const Form kPathForm{"a path", check_path};

}  // namespace sortie::config
