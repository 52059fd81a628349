# needs: npm
# A package of nobody else's: install from a directory, run a script.
mkdir -p dep app
export npm_config_cache=$PWD/.npm npm_config_update_notifier=false
echo '{"name":"dep","version":"1.0.0","main":"i.js"}' >dep/package.json
echo 'module.exports = 42' >dep/i.js
echo '{"name":"app","version":"1.0.0","scripts":{"go":"node use.js"}}' >app/package.json
echo 'console.log(require("dep"))' >app/use.js
cd app
npm install --offline --no-audit --no-fund ../dep >/dev/null
npm run --silent go | grep >/dev/null 42
