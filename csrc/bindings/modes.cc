// Eager modes as Python sees them: numbers, to which torch_tpu/tpu/_modes.py gives names.
#include <pybind11/pybind11.h>

#include <tuple>

#include "bindings/bindings.h"
#include "eager/mode.h"

namespace torch_tpu::bindings {

namespace {

using Settings = std::tuple<int, int, bool>;

Settings to_python(const eager::EagerSettings& s) {
  return {static_cast<int>(s.mode), static_cast<int>(s.nan.action), s.nan.infinities};
}

eager::EagerSettings from_python(const Settings& settings) {
  const auto [mode, action, infinities] = settings;
  constexpr int kNumModes = static_cast<int>(eager::detail::kNumModes), kNumActions = 3;
  if (mode < 0 || mode >= kNumModes || action < 0 || action >= kNumActions) {
    throw pybind11::value_error(
        "eager settings: expected a mode from 0 to 2 and an action from 0 "
        "to 2, got " +
        std::to_string(mode) + " and " + std::to_string(action));
  }
  return {static_cast<eager::EagerMode>(mode),
          {static_cast<eager::NanCheck::Action>(action), infinities}};
}

}  // namespace

void bind_modes(pybind11::module_& m) {
  m.def("default_eager_settings", [] { return to_python(eager::default_settings()); });
  m.def(
      "set_default_eager_settings",
      [](const Settings& s) { eager::set_default_settings(from_python(s)); },
      pybind11::arg("settings"));
  m.def("current_eager_settings", [] { return to_python(eager::current_settings()); });
  m.def(
      "enter_eager_settings", [](const Settings& s) { eager::enter_settings(from_python(s)); },
      pybind11::arg("settings"));
  m.def("leave_eager_settings", &eager::leave_settings);
  m.def("checks_nan", &eager::checks_nan);
}

}  // namespace torch_tpu::bindings
