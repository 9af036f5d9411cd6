# What find_package(Tutti) finds.
