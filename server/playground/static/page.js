// Starts the page: tabs, theme, keys and dialogs.

import { key, setKey } from "./api.js";
import { byId, showNote, store, stored } from "./dom.js";
import { readNow, startLive } from "./live.js";
import { startRace } from "./race.js";
import { drawSampling } from "./sampling.js";
import { drawHistory, setMode, startTalk } from "./talk.js";

const TABS = ["chat", "completion", "race"];

function selectTab(name, hasFocus = false) {
  for (const each of TABS) {
    const tab = byId(`tab-${each}`);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
  }
  byId("panel-race").hidden = name !== "race";
  byId("panel-talk").hidden = name === "race";
  if (name !== "race") {
    byId("panel-talk").setAttribute("aria-labelledby", `tab-${name}`);
    setMode(name);
  }
  if (hasFocus) byId(`tab-${name}`).focus();
}

function startTabs() {
  TABS.forEach((name, i) => {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => selectTab(name));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) selectTab(TABS[(i + step + TABS.length) % TABS.length], true);
    });
  });
}

function startTheme() {
  const root = document.documentElement;
  root.dataset.theme = stored("theme", "");
  byId("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    store("theme", root.dataset.theme);
  });
}

/** Ask for the keys, with the reason if there is one. */
function askForKey(reason = "") {
  const dialog = byId("key-dialog");
  showNote(byId("key-message"), reason);
  byId("key").value = key("caller");
  byId("admin-key").value = key("admin");
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
}

function startKeys() {
  byId("open-key").addEventListener("click", () => askForKey());
  byId("key-dialog").addEventListener("close", () => {
    if (byId("key-dialog").returnValue !== "save") return;
    setKey("caller", byId("key").value.trim());
    setKey("admin", byId("admin-key").value.trim());
    readNow();
  });
}

function startHistory() {
  byId("open-history").addEventListener("click", () => {
    drawHistory((mode) => {
      selectTab(mode);
      byId("history-dialog").close();
    });
    byId("history-dialog").showModal();
  });
}

startTheme();
startTabs();
startKeys();
startHistory();
drawSampling();
startTalk(askForKey);
startRace(askForKey);
startLive(askForKey);
