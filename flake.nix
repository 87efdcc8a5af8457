# nix run github:OWNER/cofferdam -- doctor
{
  description = "Sandbox for agents that need a shell";

  # The first release with the compiler that Cargo.toml asks for.
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.11";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forEach = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      packages = forEach (pkgs: rec {
        cofferdam = pkgs.callPackage ./packaging/nix/package.nix { };
        default = cofferdam;
      });
      nixosModules.default = import ./packaging/nix/module.nix self;
    };
}
