# needs: jq
[ "$(echo '{"a":[1,2,39]}' | jq '.a | add')" = 42 ]
