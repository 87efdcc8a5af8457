# The program with its pages, completions and units of systemd.
{
  lib,
  rustPlatform,
  installShellFiles,
  glibc,
}:

rustPlatform.buildRustPackage {
  pname = "cofferdam";
  version = (lib.importTOML ../../Cargo.toml).workspace.package.version;
  src = lib.cleanSource ../..;
  cargoLock.lockFile = ../../Cargo.lock;
  cargoBuildFlags = [
    "-p"
    "cofferdam"
  ];
  nativeBuildInputs = [ installShellFiles ];
  # The archives by which the program is linked without shared libraries.
  buildInputs = [ glibc.static ];
  # Tests make cells, which the sandbox of a build refuses.
  doCheck = false;

  postInstall = ''
    $out/bin/cofferdam man --out pages
    installManPage pages/*
    for shell in bash zsh fish; do
      $out/bin/cofferdam completions $shell >cofferdam.$shell
    done
    installShellCompletion cofferdam.{bash,fish} --name _cofferdam cofferdam.zsh
    for manager in system user; do
      install -D -m 644 -t $out/lib/systemd/$manager packaging/systemd/$manager/*
      substituteInPlace $out/lib/systemd/$manager/cofferdam.service --replace-fail /usr/bin/cofferdam $out/bin/cofferdam
    done
  '';

  meta = {
    description = "Sandbox for agents that need a shell";
    license = with lib.licenses; [
      asl20
      mit
    ];
    mainProgram = "cofferdam";
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
}
