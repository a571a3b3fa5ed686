
"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  function download(view, kind, name, button) {
    view.toImageURL(kind, kind === "png" ? 2 : 1).then(function (url) {
      const link = document.createElement("a");
      link.href = url; link.download = name + "." + kind;
      document.body.appendChild(link); link.click(); link.remove();
    }).catch(function (error) { button.textContent = "Could not write the file: " + error; });
  }
  for (const figure of document.querySelectorAll("figure[data-figure]")) {
    const name = figure.dataset.figure, box = figure.querySelector(".chart");
    vegaEmbed(box, figures[name], {actions: false, renderer: "svg", ast: true}).then(function (drawn) {
      figure.dataset.drawn = "yes";
      for (const button of figure.querySelectorAll("button[data-kind]")) {
        button.disabled = false;
        button.addEventListener("click", function () {
          download(drawn.view, button.dataset.kind, figure.dataset.file, button);
        });
      }
    }).catch(function (error) {
      figure.dataset.drawn = "no"; box.textContent = "Could not draw this figure: " + error;
    });
  }
})();
