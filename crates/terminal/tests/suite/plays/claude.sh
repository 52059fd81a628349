# Claude Code ($CLAUDE) as somebody uses it who has been through its first questions, with $WISH for the model at
# $ANTHROPIC_BASE_URL.
HOME=$(mktemp -d) && export HOME && mkdir "$HOME/project" && cd "$HOME/project" || exit
cat > "$HOME/.claude.json" <<END
{"hasCompletedOnboarding": true, "theme": "dark",
 "customApiKeyResponses": {"approved": ["${ANTHROPIC_API_KEY: -20}"], "rejected": []},
 "projects": {"$PWD": {"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true}}}
END
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1
export ANTHROPIC_MODEL=claude-tiny ANTHROPIC_SMALL_FAST_MODEL=claude-tiny ANTHROPIC_DEFAULT_HAIKU_MODEL=claude-tiny
# Without a word on it, it judges by itself what it may.
exec "$CLAUDE" --permission-mode manual "$WISH"
