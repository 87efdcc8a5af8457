# `make dist` fills in the version and the archives: target/dist/cofferdam.rb is the formula for a tap.
class Cofferdam < Formula
  desc "Sandbox for agents that need a shell"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license any_of: ["Apache-2.0", "MIT"]

  depends_on :linux

@ARCHIVES@

  def install
    bin.install "bin/cofferdam"
    man1.install Dir["share/man/man1/*"]
    bash_completion.install "share/bash-completion/completions/cofferdam"
    zsh_completion.install "share/zsh/site-functions/_cofferdam"
    fish_completion.install "share/fish/vendor_completions.d/cofferdam.fish"
    doc.install Dir["share/doc/cofferdam/*"]
    (share/"cofferdam").install "share/cofferdam/apparmor"
  end

  def caveats
    <<~EOS
      Cells have the bash and bc of /usr, not those of Homebrew. Ask whether this machine can hold them:
        cofferdam doctor
    EOS
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/cofferdam --version")
    assert_match "1.41421356", shell_output("#{bin}/cofferdam calc 'sqrt(2)'")
  end
end
